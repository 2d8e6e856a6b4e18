"""`tandem dev`: stands in for a Spark operator on one machine.

Modules:

    controller   watches SparkApplications
    application  one of them, from state to state
    request      one of them as a local job
"""

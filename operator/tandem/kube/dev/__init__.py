"""`tandem dev`: stands in for a Spark operator on one machine.

All of its input is in the `SparkApplication` and the Secrets that this refers to: it must not
import `tandem.operations`, and never reads a LakeTable or an operation.

    controller  watches SparkApplications, and runs each from state to state
    request     one of them as a local job
"""

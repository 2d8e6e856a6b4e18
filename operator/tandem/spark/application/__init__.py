"""Jobs as `SparkApplication`s: builds the manifest, checks templates, reads states.

Pure.

    manifest          builds applications of jobs and servers, with their sizes
    port              the port to Spark operators; states and reasons
    template          checks and merges users' templates; texts that reach `spark-submit` unchanged
    policy            what a template may do
    allowed_settings  lists of settings and fields that templates may set
"""

"""Jobs as `SparkApplication`s: builds the manifest, checks templates, reads states.

Pure.

    manifest          build and read back
    port              the port to Spark operators
    template          checks and merges users' templates
    policy            what a template may do
    allowed_settings  lists of settings and fields that templates may set
    setting_checks    checks a template against these lists
    arguments         texts that reach `spark-submit` unchanged
    service           applications that serve until they are deleted
    pool              applications that do the jobs of a pool
    sizes             sizes of driver and executors
    status            states and reasons
"""

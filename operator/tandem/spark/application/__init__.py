"""Jobs as `SparkApplication`s: build the manifest, judge templates, read states.

Pure.

    manifest          build and read back
    port              the seam to other Spark operators
    template          users' templates, merged
    policy            what a template may do
    allowed_settings  lists of settings and fields that templates may set
    setting_checks    a template against these lists
    arguments         texts that reach `spark-submit` unchanged
    pods              credentials and rights of pods
    sizes             sizes of driver and executors
    status            states and reasons
"""

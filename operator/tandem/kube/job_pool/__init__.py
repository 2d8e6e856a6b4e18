"""Job pools: Spark applications that do the small jobs of many operations.

The operator makes pools and puts jobs into their ConfigMaps; the driver of a pool reads its own.
Neither commits anything, and no job has other credentials than its table's: what shares a pool
shares namespace, account, Secret, storage options, image and template (docs/decisions/0183).

    driver       the main function of a pool's driver
    config_maps  the calls about the ConfigMaps of pools
    pools        the pools of one operator: makes, finds and removes them
    runner       the `JobRunner` of an operation whose small jobs are pooled
"""

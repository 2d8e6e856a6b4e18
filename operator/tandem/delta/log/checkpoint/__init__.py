"""Reading the checkpoints of a log (protocol, "Checkpoints").

Knows nothing of the commits after a checkpoint: `tandem.delta.log.load` joins both.

    read          classic, multi-part and V2 checkpoints
    parquet_file  a Parquet file of a checkpoint, measured before it is decoded
"""

"""From files to checked resources: what `-f` does.

Reads no table and no cluster. Raises `InvalidSpec` with file and line.

    loader       documents to resources
    document     one document
    yaml_source  YAML with the line of every value
"""

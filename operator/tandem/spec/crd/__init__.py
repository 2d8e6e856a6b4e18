"""The custom resource definitions, generated from the models.

Talks to no cluster.

    definitions   one definition per kind
    descriptions  the docstring under each field
    schema        a pydantic model as a structural schema
"""

"""The custom resource definitions, generated from the models.

Talks to no cluster.

    definitions  one definition per kind
    schema       a pydantic model as a structural schema
"""

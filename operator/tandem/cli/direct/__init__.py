"""Commands that do one thing to one table: `tandem compact LOCATION`, `tandem update LOCATION …`.

They turn their arguments into the resources that `tandem run -f` takes, and run these. They never
decide what happens to a table.

    app        the commands and their options
    resources  arguments as resources
    command    plans, prints or runs them; `maintain`
"""

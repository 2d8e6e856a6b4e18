"""The command line: `tandem`.

Thin: reads what was typed, calls the layers below, prints what they answer. Everything for
people goes to standard error; standard output holds results only. Modules import what is
heavy (Arrow, Spark, the engine) inside the functions that need it, so that `tandem --help`
answers at once.
"""

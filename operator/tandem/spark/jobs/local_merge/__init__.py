"""A merge over Arrow, where its meaning is proven equal to Spark's (`statements.local`).

Must not import Spark, so that a small merge needs none. Everything that is not certain, and each
row on which Spark raises, or may do so, is left to Spark as `NeedsSpark`: it then executes the
whole round (`jobs.merge`).

    source  the source as an Arrow table
    search  a task: rows of the table that match, and what becomes of them
    rounds  a round: all tasks, and the rows that are inserted
"""

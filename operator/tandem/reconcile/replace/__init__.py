"""Replaces: which rows of a version they remove. Pure.

Must not read files: what is known of their rows is an argument.

    rule  the rule: what becomes of a row, by its age
    ages  when the rows of a version came
"""

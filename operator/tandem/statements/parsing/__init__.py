"""Text to typed tree: the part of Spark's expression grammar that Tandem accepts.

Pure, and total: every text is parsed or refused with a position in it, in bounded time.

    source     the text, and errors that point into it
    lexer      text to tokens
    relations  what an expression may name
    cursor     the parser's position, and its limits
    parser     the grammar
    operands   constants, CASE, casts and calls
    names      resolves names
    functions  the functions that may be called
    patterns   bounds on LIKE, RLIKE and date formats
"""

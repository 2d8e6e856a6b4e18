"""Text to typed tree: the part of Spark's expression grammar that Tandem accepts.

Pure, and total: every text is parsed or refused with a place in it, in bounded time.

    source     the text, and errors that point into it
    lexer      text to tokens
    cursor     where the parser is, and its bounds
    parser     the grammar
    operands   constants, CASE, casts and calls
    names      what a name means
    functions  the functions that may be called
    patterns   bounds on LIKE, RLIKE and date formats
"""

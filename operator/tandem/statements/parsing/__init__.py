"""Text to typed tree: the part of Spark's expression grammar that Tandem accepts.

Pure, and total: every text is parsed or refused with a position in it, in bounded time.

    lexer      text to tokens
    cursor     the parser's position, its limits, and the names that it resolves
    parser     the grammar
    functions  the functions that may be called
"""

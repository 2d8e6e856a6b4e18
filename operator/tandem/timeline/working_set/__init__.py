"""What is visible when: versions as change sets, and the working sets that follow.

Must not read a log or a file: changes are made from actions that were read elsewhere.

    changes  versions as change sets, and the working sets that follow
    index    what is visible when, kept from commit to commit
    masks    the moments of a file that a deletion vector hides whole
"""

"""One operation in progress: performs the machine's effects against the real world.

The only room that commits. Knows no kind of operation: those implement `model.Work`'s protocol.

    session         holds the state, performs one effect at a time
    performer       one method per effect
    committer       commits an attempt, or its abandonment
    commit_actions  from a change set to the actions of a commit
    job_control     start and watch the job, verify its result
    recovery        what earlier processes left, and whether it is usable
    identity        which operation a resource is
"""

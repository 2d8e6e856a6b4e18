"""One operation in progress: performs the machine's effects on store, log, locks and jobs.

The only package that commits the work of operations. Does not depend on the kinds of operations.

    session         holds the state, performs one effect at a time
    performer       one method per effect
    options         lock mode, maintenance, and the hook around effects
    committer       commits an attempt, or its abandonment
    commit_actions  from a change set to the actions of a commit
    reservation     reserves values of identity columns, by commits of their own
    carry_out       hidden rows and new values as edits, where vectors are off
    job_control     start and watch the job, verify its result; jobs in processes of their own
    recovery        which run a resource stands for, what earlier processes left, and whether it is
                    usable
"""

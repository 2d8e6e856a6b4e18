"""What users read about an operation: its status, its result and the summary's sentences.

Pure.

    status     the state machine's state as `status`
    explain    fields of `result`
"""

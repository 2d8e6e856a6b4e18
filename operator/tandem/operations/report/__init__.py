"""From what happened to what people read: status, result and sentences.

Pure.

    status     a state as `status`
    explain    fields of `result`
    sentences  `result.summary`
"""

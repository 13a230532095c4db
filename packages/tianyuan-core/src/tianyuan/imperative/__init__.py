"""The imperative runtime: tensors, the one ``apply``, and tapes."""

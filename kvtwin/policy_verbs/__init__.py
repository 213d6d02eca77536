"""The verbs of `kvtwin policy`."""

"""One file a verb of `kvtwin trace`."""

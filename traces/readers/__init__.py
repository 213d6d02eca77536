"""One file a trace format; each turns a `Source` into a `Trace`."""

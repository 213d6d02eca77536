"""Writers of trace formats, one file each; `traces.writing` is their front."""

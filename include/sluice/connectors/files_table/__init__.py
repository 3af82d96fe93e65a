"""A table of files as a sink: manifests name the files that readers see."""

"""Where files are: paths of this machine, and URLs of filesystems that fsspec knows, which are read like paths."""

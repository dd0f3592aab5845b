"""What Horovod keeps under ``horovod.common``: its exceptions."""

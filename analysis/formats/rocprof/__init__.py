"""Read what rocprofv3 writes of AMD's GPUs: databases (rocpd) and JSON, a process a file or several in one."""

"""Imported first by scripts of Lightning, which looks into torchvision if there is one.

PyPI's torchvision does not load beside a torch for CPUs: torchvision_import says why, and loads it all the same.
"""

from commtrace.profiling.workloads.torchvision_import import torchvision

torchvision("transforms")

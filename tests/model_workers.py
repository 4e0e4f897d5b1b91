"""Finds the worker processes that hold a model on Ray."""

import psutil


def model_workers(process: psutil.Process) -> list[psutil.Process]:
    """The processes below this one that have a model. One that ends while it is looked at is none."""
    found = []
    for each in process.children(recursive=True):
        try:
            if "ModelWorker" in each.name():
                found.append(each)
        except psutil.NoSuchProcess:
            continue
    return found

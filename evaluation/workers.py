"""Several things at a time, in processes of their own."""

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager


@contextmanager
def workers(jobs):
    """A pool of `jobs` processes for `run_all`; None for one job, which then runs in this process."""
    if jobs == 1:
        yield None
    else:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _end_with_parent) as pool:
            yield pool


def run_all(function, items, pool=None):
    """[function(item) of each item], in the pool's processes if there is one; the first error ends it."""
    if pool is None:
        return [function(item) for item in items]
    futures = [pool.submit(function, item) for item in items]
    try:
        for future in as_completed(futures):
            future.result()
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    return [future.result() for future in futures]


def _end_with_parent():
    """Worker processes end when the main process is killed, so that a new run finds no other at work."""

    def watch():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

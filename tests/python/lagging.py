# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a stream of a device, on which forward passes lag behind the scheduler."""
import collections


def prefixes(tokens):
    """A value for the KV of each position, which depends on all tokens up to it."""
    found, value = [], 0
    for token in tokens:
        value = hash((value, token))
        found.append(value)
    return found


class Stream:
    """Runs work in its order, when it is waited for, or by chance before: eager, of 1."""

    def __init__(self, chance, eager):
        self.chance, self.eager = chance, eager
        self.queue, self.done, self.queued = collections.deque(), 0, 0

    def launch(self, work):
        """Returns the number of the work, to wait for."""
        self.queue.append(work)
        self.queued += 1
        if self.chance.random() < self.eager:
            self.synchronize(self.chance.randint(self.done, self.queued))
        return self.queued

    def synchronize(self, number):
        while self.done < number:
            self.queue.popleft()()
            self.done += 1

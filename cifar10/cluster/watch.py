"""Watches the other processes of a cluster: which of them cannot be reached, for how long, and when to give up.

TensorFlow's session waits for a lost process silently and without a limit, and its errors name no address.
"""
import contextlib
import threading
import time
from collections.abc import Callable

from cifar10.base.console import say
from cifar10.base.stuck import end_process
from cifar10.cluster.address import peer_of, shut_down

_INTERVAL_SECS = 0.5  # between two checks
# A peer is lost after this time and this many failed checks; a process that ends normally is not reported.
_GRACE_SECS = 2.0
_MIN_FAILURES = 3


def wait_for(peers: dict[str, str], limit: float, answers: Callable[[str, str], bool],
             announce: bool = True) -> dict[str, str]:
    """Waits until all peers answer.

    Args:
      peers: {name: 'host:port'}.
      limit: seconds to wait.
      answers: function (name, address) -> whether that peer answers now.
      announce: whether to print which peers do not answer yet.

    Returns:
      The peers that did not answer within the limit, {name: address}.
    """
    begin = time.monotonic()
    missing = dict(peers)
    announced = None
    while True:
        missing = {name: address for name, address in missing.items() if not answers(name, address)}
        if not missing or time.monotonic() - begin > limit:
            return missing
        if announce and missing != announced and time.monotonic() - begin > _GRACE_SECS:
            say('waiting', f'for {listed(missing)}, up to {limit} s')
            announced = dict(missing)
        time.sleep(_INTERVAL_SECS)


def listed(peers: dict[str, str]) -> str:
    """Returns peers {name: address} as a phrase: 'worker 1 at host:port, ps 0 at host:port'."""
    return ', '.join(f'{name} at {address}' for name, address in peers.items())


class Watch:
    """A thread that reports lost peers, and ends this process if one does not come back.

    The connections with a lost peer are ended: if its machine lost power, what waits for an answer there would wait
    forever. A peer's name is resolved once, and again only when it is lost, so an outage of the name service costs
    nothing.

    Args:
      peers: {name: 'host:port'}.
      limit: seconds that a lost peer may take to come back; 0 if a lost peer ends this process immediately.
    """

    def __init__(self, peers: dict[str, str], limit: float):
        self._peers = [_Peer(*peer) for peer in peers.items()]
        self._limit = limit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch and its thread: from now on, peers may end."""
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.wait(_INTERVAL_SECS):
            for peer in self._peers:
                found = None
                with contextlib.suppress(OSError):
                    found = peer_of(peer.found or peer.address)
                if self._stop.is_set():
                    return
                if found:
                    self._met(peer, found)
                else:
                    self._missed(peer)

    def _met(self, peer, found):
        if peer.is_lost:
            _say('back', str(peer))
        peer.found, peer.last_seen, peer.failures, peer.is_lost = found, time.monotonic(), 0, False

    def _missed(self, peer):
        """Notes that nothing listens at the address of a peer, and ends this process after the limit."""
        peer.failures += 1
        away = time.monotonic() - peer.last_seen
        if away <= _GRACE_SECS or peer.failures < _MIN_FAILURES:
            return
        if self._limit and not peer.is_lost:
            _say('lost', f'{peer}; waiting up to {self._limit} s for it')
        peer.is_lost = True
        if peer.found:
            shut_down(peer.found)
            peer.found = None  # its name may have another address when it is back
        if away > self._limit:
            after = f' after {self._limit} s' if self._limit else ''
            end_process(f'{peer} cannot be reached{after}; start all processes again to continue from the newest '
                        'checkpoint')


class _Peer:
    """A peer, as it was seen last; `found` is the IP address and port where it was, or None before."""

    def __init__(self, name, address):
        self.name = name
        self.address = address
        self.found = None
        self.last_seen = time.monotonic()
        self.failures = 0
        self.is_lost = False

    def __str__(self):
        return f'{self.name} at {self.address}'


def _say(word, text):
    """Prints a line, and ignores errors: the watch continues where nobody reads the lines any more."""
    with contextlib.suppress(Exception):
        say(word, text)

"""A rank that has died takes the others with it; one that is done does not."""

import functools
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from absl.testing import absltest, parameterized

from t5suite.training.processes import lost_ranks
from t5suite.training.processes.ranks import Ranks
from t5suite.training.processes.signals import StopRequests

HERE = Path(__file__).parent


@functools.cache
def three_ranks(number) -> dict:
    """What became of three ranks of which this one ended, by the way in which it did."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(HERE / "lost_rank_modes.py"), str(number)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    return json.loads(done.stdout.splitlines()[-1])


class LifelinesTest(parameterized.TestCase):
    def assert_ends(self, mode, number, own, others):
        codes, seconds = three_ranks(number)[mode]
        self.assertEqual(codes, [own if rank == number else others for rank in range(3)], mode)
        self.assertLess(seconds, 20)

    @parameterized.product(number=(0, 2), mode=("is_killed", "is_killed_with_a_child"))
    def test_the_others_end_where_one_is_killed(self, number, mode):
        self.assert_ends(mode, number, -signal.SIGKILL, 74)

    @parameterized.parameters(0, 2)
    def test_the_others_are_preempted_where_they_were_asked_to_stop(self, number):
        self.assert_ends("is_killed_after_a_request", number, -signal.SIGKILL, 75)

    @parameterized.parameters(0, 2)
    def test_the_others_end_where_one_fails_or_leaves_set_up_alone(self, number):
        self.assert_ends("fails", number, 1, 74)
        self.assert_ends("leaves_set_up", number, 75, 74)

    @parameterized.parameters(0, 2)
    def test_the_others_go_on_where_one_is_done_or_stops_as_agreed(self, number):
        self.assert_ends("is_done_first", number, 0, 0)
        self.assert_ends("stops_as_agreed", number, 75, 75)
        self.assert_ends("all_are_done", number, 0, 0)

    def test_ranks_that_cannot_be_watched_work_all_the_same(self):
        self.assert_ends("cannot_be_reached", 0, 0, 0)

    def test_a_lone_rank_watches_nobody(self):
        with lost_ranks.watching_ranks(Ranks(), StopRequests()):
            self.assertFalse(lost_ranks._open)

    def test_rank_0_tells_the_others_at_once(self):
        ours, theirs = zip(*(socket.socketpair() for _ in range(2)), strict=True)
        watcher = lost_ranks.Watcher(dict(enumerate(ours, 1)), StopRequests())
        watcher.start()
        theirs[0].close()
        theirs[1].settimeout(10.0)
        self.assertEqual(theirs[1].recv(1), lost_ranks.LOST)
        watcher.close(orderly=False)
        self.assertEqual(theirs[1].recv(1), b"")
        theirs[1].close()

    def test_a_stranger_is_no_rank(self):
        listener = lost_ranks._listen("127.0.0.1")
        address = listener.getsockname()
        with listener, socket.create_connection(address) as silent, socket.create_connection(address) as stranger:
            stranger.sendall(b"guess 1\n")
            silent.shutdown(socket.SHUT_WR)
            ours = lost_ranks._call(address, "token", 1)
            theirs = lost_ranks._accept(listener, "token", 2)
        self.assertEqual(list(theirs), [1])
        ours[0].sendall(lost_ranks.FAREWELL)
        self.assertEqual(lost_ranks._receive(theirs[1]), lost_ranks.FAREWELL)
        for line in (ours[0], theirs[1]):
            line.close()


if __name__ == "__main__":
    absltest.main()

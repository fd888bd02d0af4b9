#!/usr/bin/env python3
"""Tests the hosts of scripts/hosts_up: names, cores, rate, delay, cables that can be cut, and removal. Exits with 77 if
network namespaces cannot be created."""
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from hosts import network  # noqa: E402

NAME = "test"
ECHO = """
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", 5001))
tcp = socket.create_server(("", 5002))
print("ready", flush=True)
while (received := udp.recvfrom(100))[0] != b"end":
    udp.sendto(*received)
connection, _ = tcp.accept()
while connection.recv(1 << 20):
    pass
"""
ASK = """
import socket, sys, time
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.connect((sys.argv[1], 5001))
udp.settimeout(2)
trips = []
for _ in range(100):
    begin = time.perf_counter()
    udp.send(b"x")
    udp.recv(100)
    trips.append(time.perf_counter() - begin)
udp.send(b"end")
tcp, sent, begin = socket.create_connection((sys.argv[1], 5002)), 0, time.perf_counter()
while time.perf_counter() < begin + 1:
    sent += tcp.send(bytes(1 << 16))
tcp.shutdown(socket.SHUT_WR)
tcp.recv(1)
print(min(trips) * 1e6, sent * 8 / (time.perf_counter() - begin))
"""


def output(hosts: network.Hosts, number: int, *command: str) -> str:
    return subprocess.run(hosts.entered(number, command), env=hosts.environment(), capture_output=True, text=True,
                          check=True).stdout


def trip_and_rate(hosts: network.Hosts) -> tuple[float, float]:
    """Returns the round-trip time in microseconds and the rate in bits/s."""
    command = hosts.entered(1, [sys.executable, "-c", ECHO])
    with subprocess.Popen(command, env=hosts.environment(), stdout=subprocess.PIPE, text=True) as server:
        server.stdout.readline()
        trip, rate = output(hosts, 0, sys.executable, "-c", ASK, hosts.address(1)).split()
        server.wait(10)
    return float(trip), float(rate)


class Network(unittest.TestCase):
    def test_hosts_have_own_names_and_cores(self):
        with network.Hosts(3, name=NAME) as hosts:
            self.assertEqual([output(hosts, host, "hostname").strip() for host in range(3)], ["test0", "test1", "test2"])
        with network.Hosts(2, name=NAME) as hosts:
            cores = [output(hosts, host, sys.executable, "-c", "import os; print(os.sched_getaffinity(0))") for host in range(2)]
        if len(os.sched_getaffinity(0)) > 1:
            self.assertNotEqual(*cores)
        self.assertNotIn(NAME, subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout)

    def test_cables_limit_the_rate(self):
        with network.Hosts(2, rate=100e6, name=NAME) as hosts:
            _, rate = trip_and_rate(hosts)
        self.assertLess(rate, 105e6)
        self.assertGreater(rate, 40e6)  # low limit (bits/s), because timers fire late on a busy machine

    def test_delay_adds_to_the_round_trip(self):
        with network.Hosts(2, name=NAME) as hosts:
            before, _ = trip_and_rate(hosts)
        with network.Hosts(2, delay=2000, name=NAME) as hosts:
            trip, rate = trip_and_rate(hosts)
        self.assertGreaterEqual(trip, 4000)
        self.assertLess(trip - before, 4400)
        self.assertGreater(rate, 0.5e9)

    def test_cut_cable_carries_nothing_until_mended(self):
        for delay in (0, 50):
            with self.subTest(delay=delay), network.Hosts(3, delay=delay, name=NAME) as hosts:
                hosts.cut(1)
                with self.assertRaises(subprocess.CalledProcessError):
                    output(hosts, 0, sys.executable, "-c", "import socket; socket.create_connection(('10.77.0.2', 9), 1)")
                hosts.mend(1)
                trip_and_rate(hosts)

    def test_refuses_an_existing_name(self):
        with network.Hosts(2, name=NAME), self.assertRaisesRegex(network.NetworkError, "hosts named test already exist"):
            network.Hosts(2, name=NAME)

    def test_script_removes_its_hosts_on_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            command = [ROOT / "scripts/hosts_up", "2", "--name", NAME, "--delay", "1ms", "--", "sleep", "1000"]
            with self.subTest(number), subprocess.Popen(command, stderr=subprocess.DEVNULL) as script:
                time.sleep(1.5)
                script.send_signal(number)
                self.assertEqual(script.wait(20), 128 + number)
                self.assertEqual(network.take_down(NAME), 0)


class Flags(unittest.TestCase):
    def test_parses_rates_and_delays(self):
        self.assertEqual((network.bits("1gbit"), network.bits("2.5mbit")), (1e9, 2.5e6))
        self.assertEqual((network.microseconds("50us"), network.microseconds("1.5ms")), (50, 1500))
        for parse, text in ((network.bits, "1gb"), (network.bits, "1"), (network.microseconds, "50")):
            with self.subTest(text), self.assertRaises(ValueError):
                parse(text)


if __name__ == "__main__":
    try:
        network.Hosts(1, name=NAME).down()
    except network.NetworkError as why:
        print(f"skipped: {why}")
        sys.exit(77)
    unittest.main()

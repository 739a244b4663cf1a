"""Isolation level "lsm": no_new_privs, no capabilities, Landlock and seccomp, by system calls.

Needs Linux 5.13 or later on x86-64 or arm64, and neither root nor namespaces. PyPI has no well-kept
bindings for both (`landlock` is a preview without network rules, `pyseccomp` wants libseccomp), so
this one file talks to the kernel through ctypes. It is loaded, alone, inside the sandbox: it
imports nothing of the package.

Landlock lets the process read what it is told and write nothing but /dev/null; seccomp refuses
what Landlock does not cover: sockets, processes, signals to others, other processes' memory,
changed modes and owners, and memory that outlives the process.
Sources: Linux' Documentation/userspace-api/landlock.rst and seccomp_filter.rst; the numbers are
those of asm/unistd_64.h and asm-generic/unistd.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

LEVEL = "lsm"
HELD = "nothing got out"

# ---- system calls ----------------------------------------------------------------------------

_COMMON = """
pidfd_send_signal=424 io_uring_setup=425 io_uring_enter=426 io_uring_register=427 open_tree=428
move_mount=429 fsopen=430 fsconfig=431 fsmount=432 fspick=433 pidfd_open=434 clone3=435
pidfd_getfd=438 process_madvise=440 mount_setattr=442 quotactl_fd=443 landlock_create_ruleset=444
landlock_add_rule=445 landlock_restrict_self=446 memfd_secret=447 process_mrelease=448
openat2=437 fchmodat2=452 cachestat=451 statmount=457 listmount=458
"""
_X86_64 = """
socket=41 connect=42 bind=49 listen=50 accept=43 accept4=288 fork=57 vfork=58 clone=56 execve=59
execveat=322 ptrace=101 process_vm_readv=310 process_vm_writev=311 kcmp=312 kill=62 tkill=200
tgkill=234 rt_sigqueueinfo=129 rt_tgsigqueueinfo=297 chmod=90 fchmod=91 fchmodat=268 chown=92
fchown=93 lchown=94 fchownat=260 setxattr=188 lsetxattr=189 fsetxattr=190 removexattr=197
lremovexattr=198 fremovexattr=199 utime=132 utimes=235 futimesat=261 utimensat=280 truncate=76
shmget=29 shmat=30 shmctl=31 semget=64 msgget=68 mq_open=240 mq_unlink=241 memfd_create=319
mount=165 umount2=166 pivot_root=155 chroot=161 unshare=272 setns=308 bpf=321 perf_event_open=298
userfaultfd=323 add_key=248 request_key=249 keyctl=250 init_module=175 finit_module=313
delete_module=176 kexec_load=246 kexec_file_load=320 reboot=169 swapon=167 swapoff=168 acct=163
settimeofday=164 clock_settime=227 clock_adjtime=305 adjtimex=159 sethostname=170
setdomainname=171 iopl=172 ioperm=173 quotactl=179 personality=135 fanotify_init=300
inotify_init=253 inotify_init1=294 open_by_handle_at=304 name_to_handle_at=303 syslog=103
setsid=112 setpgid=109 setpriority=141 sched_setaffinity=203 sched_setscheduler=144
sched_setparam=142 sched_setattr=314 ioprio_set=251 migrate_pages=256 move_pages=279 vhangup=153
modify_ldt=154 prlimit64=302 prctl=157 fcntl=72 ioctl=16 capset=126 seccomp=317
socketpair=53 sendmmsg=307 semop=65 semctl=66 semtimedop=220 msgsnd=69 msgrcv=70 msgctl=71
getxattr=191 lgetxattr=192 fgetxattr=193 listxattr=194 llistxattr=195 flistxattr=196 flock=73
sync=162 syncfs=306 io_setup=206 open=2 creat=85 openat=257
"""
_ARM64 = """
socket=198 connect=203 bind=200 listen=201 accept=202 accept4=242 clone=220 execve=221
execveat=281 ptrace=117 process_vm_readv=270 process_vm_writev=271 kcmp=272 kill=129 tkill=130
tgkill=131 rt_sigqueueinfo=138 rt_tgsigqueueinfo=240 fchmod=52 fchmodat=53 fchown=55 fchownat=54
setxattr=5 lsetxattr=6 fsetxattr=7 removexattr=14 lremovexattr=15 fremovexattr=16 utimensat=88
truncate=45 shmget=194 shmat=196 shmctl=195 semget=190 msgget=186 mq_open=180 mq_unlink=181
memfd_create=279 mount=40 umount2=39 pivot_root=41 chroot=51 unshare=97 setns=268 bpf=280
perf_event_open=241 userfaultfd=282 add_key=217 request_key=218 keyctl=219 init_module=105
finit_module=273 delete_module=106 kexec_load=104 kexec_file_load=294 reboot=142 swapon=224
swapoff=225 acct=89 settimeofday=170 clock_settime=112 clock_adjtime=266 adjtimex=171
sethostname=161 setdomainname=162 quotactl=60 personality=92 fanotify_init=262 inotify_init1=26
open_by_handle_at=265 name_to_handle_at=264 syslog=116 setsid=157 setpgid=154 setpriority=140
sched_setaffinity=122 sched_setscheduler=119 sched_setparam=118 sched_setattr=274 ioprio_set=30
migrate_pages=238 move_pages=239 vhangup=58 prlimit64=261 prctl=167 fcntl=25 ioctl=29 capset=91
seccomp=277 socketpair=199 sendmmsg=269 semop=193 semctl=191 semtimedop=192 msgsnd=189 msgrcv=188
msgctl=187 getxattr=8 lgetxattr=9 fgetxattr=10 listxattr=11 llistxattr=12 flistxattr=13 flock=32
sync=81 syncfs=267 io_setup=0 openat=56
"""


def _table(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (word.split("=") for word in text.split())}


# machine -> (how seccomp calls it, its numbers)
MACHINES = {
    "x86_64": (0xC000003E, _table(_COMMON + _X86_64)),
    "aarch64": (0xC00000B7, _table(_COMMON + _ARM64)),
}
# needed by us before the filter stands, or let through with some arguments only
_BY_ARGUMENT = {
    "clone", "clone3", "kill", "tgkill", "prlimit64", "prctl", "fcntl", "ioctl", "socketpair",
    "open", "creat", "openat", "openat2",
}  # fmt: skip
_OURS = {"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp"}
CLONE_THREAD, PR_SET_PDEATHSIG, O_TRUNC = 0x10000, 1, 0x200
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ: no owners, signals,
# locks, leases, notifications or hints
FCNTL = (0, 1, 2, 3, 4, 1030, 1032)
# TCGETS (isatty), TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX: a file system's own (flags,
# verity, snapshots) write through a descriptor that is open for reading
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# SOCK_STREAM with SOCK_CLOEXEC, SOCK_NONBLOCK or both: a datagram socket can send to any address
STREAM = (1, 0x80001, 0x801, 0x80801)
NEWER = 463  # numbers from here on are of calls that this table does not know


class CannotIsolate(Exception):
    """This machine cannot isolate a process; the text says what is missing."""


def machine() -> str:
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> int:
    """A system call by its name; raises OSError."""
    number = MACHINES[machine()][1][name]
    whole = [a if not isinstance(a, int) else ctypes.c_long(a) for a in arguments]
    found = int(_libc().syscall(ctypes.c_long(number), *whole))
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return found


def _prctl(option: int, value: int) -> None:
    if _libc().prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


# ---- Landlock --------------------------------------------------------------------------------

WRITE_FILE, READ_FILE, READ_DIR = 2, 4, 8
READ = READ_FILE | READ_DIR
# what a kernel's version of Landlock can handle: files, network, scopes
_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_TCP, _SCOPES = 3, 3  # bind and connect; abstract sockets and signals


def landlock_version() -> int:
    """The version of the kernel's Landlock, 0 where there is none."""
    if not sys.platform.startswith("linux") or machine() not in MACHINES:
        return 0
    try:
        return _call("landlock_create_ruleset", None, 0, 1)
    except OSError:
        return 0


def ruleset(allowed: Mapping[str, int]) -> int:
    """A Landlock ruleset, as a file descriptor: path -> what may be done there and below."""
    version = landlock_version()
    files = _FILES[max(v for v in _FILES if v <= version)]
    attributes = [files]
    if version >= 4:
        attributes.append(_TCP)
    if version >= 6:
        attributes.append(_SCOPES)
    packed = struct.pack(f"{len(attributes)}Q", *attributes)
    rules = _call("landlock_create_ruleset", packed, len(packed), 0)
    for path, access in allowed.items():
        _allow(rules, path, access)
    return rules


def _allow(rules: int, path: str, access: int) -> None:
    """Let the access through beneath a path; one that does not exist needs no rule."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)  # type: ignore[attr-defined]
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            access &= READ_FILE | WRITE_FILE  # a file takes no rule for folders
        _call("landlock_add_rule", rules, 1, struct.pack("=Qi", access, place), 0)
    finally:
        os.close(place)


def interpreter_paths() -> dict[str, int]:
    """What running Python needs: its library and packages, shared libraries, time zones, fonts.

    Folders of packages may be listed, and their entries read, ours excepted: it holds expected
    values. Nothing of a checkout or a home is in it, unless Python itself lies there.
    """
    roots = [os.path.realpath(p) for p in (sys.prefix, sys.base_prefix, "/usr/lib", "/usr/local")]
    system = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/usr/share/fonts",
              "/dev/zero", "/dev/urandom", "/dev/random")  # fmt: skip
    found = dict.fromkeys([*system, *_library_folders()], READ)
    found["/dev/null"] = READ_FILE | WRITE_FILE
    for entry in sys.path:
        place = os.path.realpath(entry)
        if not (entry and any(place.startswith(f"{root}/") for root in roots)):
            continue
        inside = os.listdir(place) if os.path.isdir(place) else []
        packages = {"site-packages", "dist-packages"}
        if os.path.basename(place) in packages or packages & set(inside):
            found[place] = READ_DIR
            private = (
                "autograder",
                "normalization_course",
                "__editable__",
                "_editable_impl",
                *packages,
            )
            found |= {os.path.join(place, n): READ for n in inside if not n.startswith(private)}
        else:
            found[place] = READ
    return found


def _library_folders() -> set[str]:
    """Where the shared libraries lie that this process has loaded from the system."""
    folders = set()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if ".so" in path and path.startswith(("usr/lib", "lib", "usr/local/lib")):
                folders.add(os.path.dirname(f"/{path}"))
    return folders - {"/usr/lib", "/lib", "/usr/local/lib"}


# ---- seccomp ---------------------------------------------------------------------------------

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000


def seccomp_program(name: str, pid: int, landlock: int) -> list[tuple[int, int, int, int]]:
    """The filter of one process as BPF instructions (code, jump if true, if false, value).

    Landlock before version 3 lets a file that may be read be emptied as well: there, the filter
    refuses to open for that.
    """
    architecture, numbers = MACHINES[name]
    denied = _ERROR | errno.EPERM
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL),
               (_LOAD, 0, 0, 0)]  # fmt: skip
    if name == "x86_64":  # the numbers of the x32 interface, which no table here knows
        program += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]

    def when(call: str, argument: int, test: int, *values: int, allowed: bool) -> None:
        """Let a call through, or refuse it, if an argument passes the test with one value."""
        yes, no = (_ALLOW, denied) if allowed else (denied, _ALLOW)
        checks = []
        for value in values:
            checks += [(test, 0, 1, value), (_RETURN, 0, 0, yes)]
        body = [(_LOAD, 0, 0, 16 + 8 * argument), *checks, (_RETURN, 0, 0, no)]
        program.extend([(_EQUAL, 0, len(body), numbers[call]), *body])

    when("clone", 0, _ANY_BIT, CLONE_THREAD, allowed=True)
    for call in ("clone3", "openat2"):  # what they do is in memory that a filter cannot read
        program += [(_EQUAL, 0, 1, numbers[call]), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    if landlock < 3:
        for call, flags in (("open", 1), ("openat", 2)):
            if call in numbers:
                when(call, flags, _ANY_BIT, O_TRUNC, allowed=False)
        if "creat" in numbers:
            program += [(_EQUAL, 0, 1, numbers["creat"]), (_RETURN, 0, 0, denied)]
    when("kill", 0, _EQUAL, pid, allowed=True)
    when("tgkill", 0, _EQUAL, pid, allowed=True)
    when("prlimit64", 0, _EQUAL, 0, pid, allowed=True)
    when("prctl", 0, _EQUAL, PR_SET_PDEATHSIG, allowed=False)
    when("fcntl", 1, _EQUAL, *FCNTL, allowed=True)
    when("ioctl", 1, _EQUAL, *IOCTL, allowed=True)
    when("socketpair", 1, _EQUAL, *STREAM, allowed=True)
    program.extend([(_AT_LEAST, 0, 1, NEWER), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)])
    for call in sorted(numbers.keys() - _BY_ARGUMENT - _OURS):
        program += [(_EQUAL, 0, 1, numbers[call]), (_RETURN, 0, 0, denied)]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _refuse_calls() -> None:
    program = seccomp_program(machine(), os.getpid(), landlock_version())
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    _call("seccomp", 1, 0, ctypes.byref(_Program(len(program), code)))  # mode: a filter


# ---- all of it -------------------------------------------------------------------------------


def restrict(rules: int) -> None:
    """Put this process, single-threaded and for good, under the rules; raises CannotIsolate."""
    try:
        _prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
        # no capabilities: root is then an ordinary user who owns root's files
        _call("capset", struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6))
        _call("landlock_restrict_self", rules, 0)
        os.close(rules)
        _refuse_calls()
    except OSError as error:
        raise CannotIsolate(str(error)) from None


def limit_memory(allowance: int) -> None:
    """This process may map so many more bytes than it has now, and is the first to go where the
    machine's memory ends."""
    import resource  # not on Windows, where `autograder doctor` reads this file

    statm = os.open("/proc/self/statm", os.O_RDONLY)  # by hand: open() costs a child a millisecond
    present = int(os.read(statm, 100).split()[0]) * resource.getpagesize()
    os.close(statm)
    resource.setrlimit(resource.RLIMIT_AS, (present + allowance,) * 2)
    score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(score, b"1000")
    os.close(score)


def end_with_parent() -> None:
    """Where the kernel can (Linux), this process is killed when the one that forked it ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def huge_pages() -> None:
    """Lay this process's memory into huge pages, where the kernel can: a fork then copies an entry
    for two megabytes instead of five hundred, and is three times as quick where torch is loaded."""
    size, collapse = 1 << 21, 25  # MADV_COLLAPSE: Linux 6.1
    libc = ctypes.CDLL(None)
    with open("/proc/self/maps", encoding="utf-8") as file:
        lines = [line.split() for line in file]
    for place, access, _, _, _, *name in lines:
        if access == "rw-p" and name in ([], ["[heap]"]):
            begin, end = (int(number, 16) for number in place.split("-"))
            for address in range(-(-begin // size) * size, end // size * size, size):
                libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), collapse)


def report() -> list[str]:
    """What this machine offers, in lines for people."""
    version = landlock_version()
    known = "known" if machine() in MACHINES else "not known here"
    seccomp = "yes" if _has_seccomp() else "no"
    return [
        f"system     {platform.system()} {platform.release()}",
        f"processor  {machine()}: its system calls are {known}",
        f"Landlock   {f'version {version}' if version else 'no'}",
        f"seccomp    {seccomp}",
    ]


def _has_seccomp() -> bool:
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "\nSeccomp:" in status


def missing() -> list[str]:
    """What this machine lacks for level "lsm", in sentences; [] where it can be had.

    Tried out, not looked up: a child process restricts itself and tries what it must not do.
    """
    if not sys.platform.startswith("linux"):
        system = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
        return [f"{system} has neither Landlock nor seccomp: grade on Linux, in a container, a "
                "virtual machine or (on Windows) WSL 2."]  # fmt: skip
    if machine() not in MACHINES:
        return [f"System calls of {machine()} are not known here: use x86-64 or arm64."]
    if landlock_version() == 0:
        return ["The kernel offers no Landlock: it needs Linux 5.13 or later with landlock among "
                "its security modules (boot with lsm=landlock,…; in a container, a runtime whose "
                "seccomp profile lets it through, as Docker's and Podman's do)."]  # fmt: skip
    failed = _try_out()
    return [f"A test process {failed}."] if failed else []


def _try_out() -> str:
    """What a restricted process could do although it must not, or ''. A fresh process: this one may
    have threads, and a fork of those can hang."""
    words = [sys.executable, "-I", "-B", "-W", "ignore", __file__]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace")
    said = done.stdout.strip()
    return "" if said == HELD else said[:500] or f"ended with exit code {done.returncode}"


def _escape() -> str:
    """Restrict this process, and try what it must not do; HELD, or what it could do."""
    import socket

    parent = os.getppid()
    rules = ruleset(interpreter_paths())
    restrict(rules)
    attempts = {
        "could read a file": lambda: Path("/etc/passwd").read_bytes(),
        "could empty a file": lambda: os.open(os.__file__, os.O_RDONLY | os.O_TRUNC),
        "could write a file": lambda: Path("/tmp/autograder-was-here").write_bytes(b""),
        "could open a socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "could fork": os.fork,
        "could signal another process": lambda: os.kill(parent, 0),
        "could change a file's mode": lambda: os.chmod("/tmp", 0o1777),
        "could start a program": lambda: os.execv("/bin/true", ["true"]),
    }
    for what, attempt in attempts.items():
        try:
            if attempt() == 0 and what == "could fork":
                os._exit(0)  # the fork itself
        except PermissionError:
            continue
        except OSError as error:
            return f"met {error} where it {what}"
        return what
    return HELD


if __name__ == "__main__":
    try:
        print(_escape())
    except Exception as error:
        print(f"could not be restricted ({type(error).__name__}: {error})")

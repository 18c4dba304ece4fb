"""The commands of `fcntl`, `ioctl` and `prctl`: which of them a program in the sandbox may use, and why.

Each of these system calls does many things, so it is filtered by command. A command that is not in the table is rejected, even if
a newer kernel adds it.
"""

from typing import NamedTuple

ASYNC = 0o20000
"""The flag O_ASYNC of F_SETFL, with which a file signals its owner."""


class Command(NamedTuple):
    """One command, or several that are treated alike."""

    call: str
    """The system call: `fcntl`, `ioctl` or `prctl`."""
    name: str
    """The names of the commands in the kernel's headers."""
    numbers: tuple[int, ...]
    """The numbers of the commands, the same on x86_64 and aarch64; empty in the row for all other commands of the call."""
    allowed: str
    """`yes`; `no`; `if files may be changed`; `partly`: for F_SETFL, whose argument is checked too."""
    why: str
    """The reason why the command is allowed or not."""


COMMANDS = (
    Command("fcntl", "F_DUPFD, F_DUPFD_CLOEXEC", (0, 1030), "yes", "copies a descriptor of the program's own"),
    Command("fcntl", "F_GETFD, F_SETFD", (1, 2), "yes", "close-on-exec flag of the program's own descriptor"),
    Command("fcntl", "F_GETFL", (3,), "yes", "reads flags"),
    Command("fcntl", "F_SETFL", (4,), "partly", "O_NONBLOCK and similar flags; O_ASYNC would send signals"),
    Command(
        "fcntl",
        "F_GETLK, F_SETLK, F_SETLKW",
        (5, 6, 7),
        "if files may be changed",
        "a lock on a shared file would block its other users",
    ),
    Command("fcntl", "F_SETOWN, F_SETOWN_EX", (8, 15), "no", "names a process that the kernel then signals"),
    Command("fcntl", "F_GETOWN, F_GETOWN_EX, F_GETOWNER_UIDS", (9, 16, 17), "no", "useless, because no owner can be set"),
    Command("fcntl", "F_SETSIG, F_GETSIG", (10, 11), "no", "chooses the signal sent to the owner, even SIGKILL"),
    Command("fcntl", "F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW", (36, 37, 38), "no", "another kind of lock on files"),
    Command("fcntl", "F_SETLEASE, F_GETLEASE", (1024, 1025), "no", "delays and signals processes that open the file"),
    Command("fcntl", "F_NOTIFY", (1026,), "no", "sends signals on every change in a folder, including the user's folders"),
    Command("fcntl", "F_DUPFD_QUERY, F_CREATED_QUERY", (1027, 1028), "no", "Python does not use it"),
    Command("fcntl", "F_CANCELLK", (1029,), "no", "internal to the kernel"),
    Command("fcntl", "F_SETPIPE_SZ", (1031,), "no", "uses up pipe memory, which all processes of the user share"),
    Command("fcntl", "F_GETPIPE_SZ", (1032,), "yes", "reads a size"),
    Command("fcntl", "F_ADD_SEALS, F_GET_SEALS", (1033, 1034), "no", "for shared memory, which cannot be created"),
    Command("fcntl", "F_GET_RW_HINT, F_SET_RW_HINT", (1035, 1036), "no", "changes the inode, which others share"),
    Command("fcntl", "F_GET_FILE_RW_HINT, F_SET_FILE_RW_HINT", (1037, 1038), "no", "Python does not use it"),
    Command("fcntl", "F_GETDELEG, F_SETDELEG", (1039, 1040), "no", "delays and signals processes that change the folder"),
    Command("ioctl", "TCGETS", (0x5401,), "yes", "tells whether a descriptor is a terminal"),
    Command("ioctl", "FIONBIO", (0x5421,), "yes", "sets whether the program's own descriptor blocks"),
    Command("ioctl", "FIONCLEX, FIOCLEX", (0x5450, 0x5451), "yes", "close-on-exec flag of the program's own descriptor"),
    Command("ioctl", "FIOASYNC", (0x5452,), "no", "like O_ASYNC: the file signals its owner"),
    Command("ioctl", "FIOSETOWN, SIOCSPGRP", (0x8901, 0x8902), "no", "like F_SETOWN, for sockets"),
    Command("ioctl", "FIOGETOWN, SIOCGPGRP", (0x8903, 0x8904), "no", "like F_GETOWN, for sockets"),
    Command("ioctl", "TIOCSTI, TIOCLINUX", (0x5412, 0x541C), "no", "types into the user's terminal"),
    Command(
        "ioctl", "TIOCSCTTY, TIOCSPGRP", (0x540E, 0x5410), "no", "takes over a terminal or its foreground, and its signals"
    ),
    Command("ioctl", "all others", (), "no", "for devices, sockets and file systems, which a program does not need"),
    Command("prctl", "PR_SET_DUMPABLE", (4,), "no", "would let the user's other processes read this one"),
    Command("prctl", "PR_SET_PDEATHSIG", (1,), "no", "a program without this signal would outlive the launcher"),
    Command("prctl", "PR_SET_PTRACER", (0x59616D61,), "no", "would let another process trace this one"),
    Command("prctl", "PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS", (22, 38), "no", "are set once, before the program runs"),
    Command("prctl", "PR_SET_CHILD_SUBREAPER", (36,), "no", "would make the program, not the launcher, adopt orphans"),
    Command("prctl", "all others", (), "no", "the filter rejects every prctl call; Python works without it"),
)


def list_permitted(call: str, writing: bool) -> tuple[int, ...]:
    """List the commands of one system call that are allowed with any argument.

    Args:
        call: `fcntl`, `ioctl` or `prctl`.
        writing: whether files may be changed.

    Returns:
        The numbers of the commands.

    Example:
        >>> list_permitted("ioctl", False)
        (21505, 21537, 21584, 21585)
    """
    wanted = ("yes", "if files may be changed") if writing else ("yes",)
    return tuple(number for row in COMMANDS if row.call == call and row.allowed in wanted for number in row.numbers)

"""Which file systems reach over a network, where locks and syncs do not hold for every process that opens a file."""

NETWORK_FILE_SYSTEMS = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "gpfs",
        "beegfs",
        "orangefs",
        "ocfs2",
        "gfs2",
        "virtiofs",
        "vboxsf",
        "vmhgfs",
        "prl_fs",
    ]
)
"""Their locks and shared memory do not reach every process that opens a file, or are not known to."""
LOCAL_FUSE = frozenset(
    [
        "fuse.fuse-overlayfs",
        "fuse.bindfs",
        "fuse.gocryptfs",
        "fuse.encfs",
        "fuse.cryfs",
        "fuse.mergerfs",
        "fuse.ntfs-3g",
    ]
)
"""File systems of user programs over a local disk. Every other `fuse.…` counts as a network file system."""


def is_network_file_system(kind: str) -> bool:
    """`kind` is the type of a file system as the system names it, such as `ext4`; empty if it is not known."""
    return kind in NETWORK_FILE_SYSTEMS or (kind.startswith("fuse.") and kind not in LOCAL_FUSE)

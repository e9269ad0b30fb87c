package history

import "syscall"

// Errno returns the name that records have for an errno that the fabric fails with.
func Errno(e syscall.Errno) string {
	if name, ok := errnos[e]; ok {
		return name
	}
	return "EIO"
}

var errnos = map[syscall.Errno]string{
	syscall.EACCES: "EACCES", syscall.EADDRINUSE: "EADDRINUSE", syscall.EAGAIN: "EAGAIN",
	syscall.EBADF: "EBADF", syscall.ECANCELED: "ECANCELED", syscall.ECONNREFUSED: "ECONNREFUSED",
	syscall.ECONNRESET: "ECONNRESET", syscall.EFAULT: "EFAULT", syscall.EINPROGRESS: "EINPROGRESS",
	syscall.EINTR: "EINTR", syscall.EINVAL: "EINVAL", syscall.EISCONN: "EISCONN",
	syscall.EMFILE: "EMFILE", syscall.ENFILE: "ENFILE", syscall.ENOBUFS: "ENOBUFS", syscall.ENODEV: "ENODEV",
	syscall.ENOMEM: "ENOMEM", syscall.ENOSPC: "ENOSPC", syscall.ENOTCONN: "ENOTCONN", syscall.ENOTTY: "ENOTTY",
	syscall.ENXIO: "ENXIO", syscall.EOPNOTSUPP: "EOPNOTSUPP", syscall.EPIPE: "EPIPE", syscall.EPROTO: "EPROTO",
	syscall.EPROTONOSUPPORT: "EPROTONOSUPPORT", syscall.ETIMEDOUT: "ETIMEDOUT",
}

package daemon

import (
	"github.com/fabricd/fabricd/internal/attach/server"
	"github.com/fabricd/fabricd/internal/engine"
	"github.com/fabricd/fabricd/internal/shm"
)

// Costs are the resources that connections take of a node with some configuration.
type Costs struct {
	ShmPath int64 // bytes of the memory of a shared-memory path within the node
	// Ends are those of shared-memory paths that an application may have, and UserEnds those of
	// all applications of one user.
	Ends, UserEnds int64
	Unread         int64 // bytes of messages that a connection keeps for a receiver, at most
	Fit            int64 // connections for which one application has memory, alone
	// Descriptors are those of fabricd for each end of a connection whose
	// application is attached, and for each such application.
	Descriptors, Attached int64
	// Path are those of fabricd for the path of a connection to another node, at each of
	// the two.
	Path int64
	// UserFiles are the descriptors beside paths that the applications of one user may
	// have while there is no other one, and UserPaths the paths.
	UserFiles, UserPaths int64
}

// CostsOf returns the costs with the configuration c.
func CostsOf(c Config) Costs {
	var path, paths int64
	if c.Paths != pathsOff {
		path, paths = 1, int64(c.maxPaths())
	}
	files, paths := server.UserShare(paths)
	if own := c.Local.Quotas.UserDescriptors; own != 0 {
		files = int64(own)
	}
	return Costs{
		Path: path, UserFiles: files, UserPaths: paths,
		ShmPath: server.ShmPathSize(c.Local.Rings), Ends: server.SessionLimits().ShmPaths, UserEnds: server.UserLimits().ShmPaths,
		Unread: engine.MessageWindow, Descriptors: 1, Attached: 1,
		Fit: int64(engine.Fits(newConnMemory(c.Local.Quotas, shm.Limit, nil).get())),
	}
}

package fabric

import (
	"testing"

	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/fence"
	"github.com/fabricd/fabricd/internal/attach"
	"github.com/fabricd/fabricd/rma"
)

// TestFlagsAreThoseOfTheProtocols: the border converts them by their numbers.
func TestFlagsAreThoseOfTheProtocols(t *testing.T) {
	for i, pair := range [][2]int64{
		{int64(ProtRead), int64(rma.ProtRead)}, {int64(ProtWrite), int64(rma.ProtWrite)}, {int64(MapFixed), int64(rma.MapFixed)},
		{int64(UseCPU), int64(rma.UseCPU)}, {int64(UseCache), int64(rma.UseCache)}, {int64(Sync), int64(rma.Sync)}, {int64(Ordered), int64(rma.Ordered)},
		{int64(InitSelf), int64(fence.InitSelf)}, {int64(InitPeer), int64(fence.InitPeer)},
		{int64(SignalLocal), int64(fence.SignalLocal)}, {int64(SignalRemote), int64(fence.SignalRemote)},
		{int64(PollIn), int64(attach.PollIn)}, {int64(PollOut), int64(attach.PollOut)}, {int64(PollErr), int64(attach.PollErr)},
		{int64(PollHup), int64(attach.PollHup)}, {int64(PollNval), int64(attach.PollNval)}, {int64(PollRdHup), int64(attach.PollRdHup)},
		{int64(NodeAdded), int64(attach.NodeAdded)}, {int64(NodeRemoved), int64(attach.NodeRemoved)},
		{int64(Host), int64(addr.Host)}, {int64(NoNode), int64(addr.NoNode)}, {int64(AdminEnd), int64(addr.AdminEnd)},
		{int64(ReservedEnd), int64(addr.ReservedEnd)}, {int64(FirstEphemeral), int64(addr.FirstEphemeral)},
		{PageSize, rma.PageSize}, {FirstOffset, rma.FirstOffset},
	} {
		if pair[0] != pair[1] {
			t.Errorf("pair %d: %#x, and below %#x", i, pair[0], pair[1])
		}
	}
}

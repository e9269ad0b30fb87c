package scenario

import (
	"reflect"
	"slices"

	"github.com/fabricd/fabricd/internal/faults"
)

// More words that a file may have; their values are in the table below.
type (
	// A Plane is the traffic that a [Link] breaks: [faults.Traffic].
	Plane string
	// A Shape is a distribution: [faults.Shape].
	Shape string
	// A Direction is the direction that a [Partition] cuts: [faults.Direction].
	Direction string
	// A StepName is a step of the protocol at which a [Fault] happens.
	StepName string
	// A DiskMode is the effect of a fault on a disk.
	DiskMode string
	// A ReasonName is why an incarnation was removed.
	ReasonName string
	// An Errno is the name of an errno.
	Errno string
)

// words are the values of every type that has a fixed list of them.
var words = map[reflect.Type][]string{
	reflect.TypeFor[Lab]():        list(Labs...),
	reflect.TypeFor[Detection]():  list(Fast, Normal, Calm),
	reflect.TypeFor[LostPair]():   list(LostPairReset, LostPairEvict),
	reflect.TypeFor[Plane]():      list(faults.Planes...),
	reflect.TypeFor[Shape]():      list(faults.Uniform, faults.Normal, faults.Exponential),
	reflect.TypeFor[Direction]():  list(faults.Symmetric, faults.Asymmetric, faults.Partial),
	reflect.TypeFor[NetworkDo]():  list(Disconnect, Reject, Forge, Garbage),
	reflect.TypeFor[NodeDo]():     list(Kill, Terminate, Stop, Start, Replace, Usurp, Damage, Ban, Remove),
	reflect.TypeFor[PathOf]():     list(PathOfMessages, PathOfRMA),
	reflect.TypeFor[PathDo]():     list(PathCut, PathOneWay, PathFull, PathReset),
	reflect.TypeFor[AppDo]():      list(AppKill, AppStop, AppSlow, AppClose, AppFlood),
	reflect.TypeFor[FaultKind]():  list(FaultCrash, FaultDelay, FaultClock, FaultDisk, FaultDescriptors, FaultSlow),
	reflect.TypeFor[RotateWhat](): list(RotateKeys),
	reflect.TypeFor[DiskMode]():   {"full", "read-only", "sync", "slow"},
	reflect.TypeFor[ReasonName](): {"left", "crashed", "silent", "restarted", "partitioned"},
	reflect.TypeFor[After]():      list(AfterBegin, AfterStart, AfterLast),
	reflect.TypeFor[FigureName](): list(FigureNames...),
	reflect.TypeFor[Errno](): {"ECONNRESET", "ENODEV", "ECONNREFUSED", "ETIMEDOUT", "ENOTCONN", "EPIPE", "EBADF",
		"ENOMEM", "ENOSPC", "ENXIO", "EACCES", "EINVAL", "EAGAIN", "ECANCELED", "EINTR"},
}

func list[T ~string](values ...T) []string {
	var all []string
	for _, v := range values {
		all = append(all, string(v))
	}
	return all
}

// Has reports whether the scenario can run in a lab.
func (s *Scenario) Has(lab Lab) bool { return slices.Contains(s.On, lab) }

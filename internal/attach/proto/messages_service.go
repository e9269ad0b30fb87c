package proto

import (
	"github.com/fabricd/fabricd/fabric/addr"
	"github.com/fabricd/fabricd/internal/attach"
)

// Services.
const (
	OpServe          Op = 80 // the endpoint serves a name from its LISTEN on
	OpConnectService Op = 81 // CONNECT to an endpoint if it serves a name
	OpServices       Op = 82 // a page of the services of all nodes
	OpResolve        Op = 83 // the endpoints that serve a name
	OpWatchServices  Op = 84 // turns the notification of changes on or off

	OpServicesAnew Op = 0x4020 // notification: the answer to SERVICES has changed
)

// ServicesPage bounds the entries of one answer: each takes at most 156 bytes.
const ServicesPage = 256

// ServiceBody is the name of a service.
type ServiceBody struct{ Service string }

func (m *ServiceBody) fields(c *Coder) { c.text(&m.Service) }

// ConnectServiceBody is an address and the name that the endpoint there has to serve.
type ConnectServiceBody struct {
	To      addr.Addr
	Service string
}

func (m *ConnectServiceBody) fields(c *Coder) {
	(*Address)(&m.To).fields(c)
	c.text(&m.Service)
}

// ServicesBody asks for the services that follow a name and a node, ordered by name, then by node;
// both zero: from the first one on.
type ServicesBody struct {
	Name string
	Node addr.NodeID
}

func (m *ServicesBody) fields(c *Coder) {
	c.u16((*uint16)(&m.Node))
	c.reserved(2)
	c.text(&m.Name)
}

// ResolveBody asks for the endpoints that serve a name; see Directory.Resolve.
type ResolveBody struct{ Service, Node string }

func (m *ResolveBody) fields(c *Coder) {
	c.text(&m.Service)
	c.text(&m.Node)
}

// ServiceList is some services, and whether more follow them.
type ServiceList struct {
	More     bool
	Services []attach.Service
}

func (m *ServiceList) fields(c *Coder) {
	more := uint8(0)
	if m.More {
		more = 1
	}
	c.u8(&more)
	c.reserved(1)
	n := uint16(len(m.Services))
	c.u16(&n)
	if !c.encoding {
		if more > 1 || n > ServicesPage {
			c.got.Require(false)
			return
		}
		m.More, m.Services = more == 1, make([]attach.Service, n)
	}
	for i := range m.Services {
		(*serviceFields)(&m.Services[i]).fields(c)
	}
}

// serviceFields is a Service.
type serviceFields attach.Service

func (m *serviceFields) fields(c *Coder) {
	incarnationFields(c, &m.Incarnation)
	c.u16((*uint16)(&m.Port))
	c.reserved(2)
	c.i64((*int64)(&m.RoundTrip))
	c.text(&m.Name)
	c.text(&m.Node)
}

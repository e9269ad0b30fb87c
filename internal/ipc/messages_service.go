package ipc

import (
	"github.com/fabricd/fabricd/fabric/addr"
)

// Services.
const (
	opServe          op = 80 // the endpoint serves a name from its LISTEN on
	opConnectService op = 81 // CONNECT to what serves a name
	opServices       op = 82 // a page of what the nodes serve
	opResolve        op = 83 // the endpoints that serve a name
	opWatchServices  op = 84 // begins or ends the telling of changes

	opServicesAnew op = 0x4020 // told: SERVICES would have another answer
)

// servicesPage bounds the entries of one answer: each takes at most 156 bytes.
const servicesPage = 256

// serviceBody is the name of a service.
type serviceBody struct{ Service string }

func (m *serviceBody) fields(c *coder) { c.text(&m.Service) }

// connectServiceBody is an address and the name that the endpoint there has to serve.
type connectServiceBody struct {
	To      addr.Addr
	Service string
}

func (m *connectServiceBody) fields(c *coder) {
	(*address)(&m.To).fields(c)
	c.text(&m.Service)
}

// servicesBody asks for the services behind that of a name and a node, in the order of
// names, and then of nodes; both zero: from the first one on.
type servicesBody struct {
	Name string
	Node addr.NodeID
}

func (m *servicesBody) fields(c *coder) {
	c.u16((*uint16)(&m.Node))
	c.reserved(2)
	c.text(&m.Name)
}

// resolveBody asks who serves a name; see Directory.Resolve.
type resolveBody struct{ Service, Node string }

func (m *resolveBody) fields(c *coder) {
	c.text(&m.Service)
	c.text(&m.Node)
}

// serviceList is some services, and whether more follow them.
type serviceList struct {
	More     bool
	Services []Service
}

func (m *serviceList) fields(c *coder) {
	more := uint8(0)
	if m.More {
		more = 1
	}
	c.u8(&more)
	c.reserved(1)
	n := uint16(len(m.Services))
	c.u16(&n)
	if !c.encoding {
		if more > 1 || n > servicesPage {
			c.bad = true
			return
		}
		m.More, m.Services = more == 1, make([]Service, n)
	}
	for i := range m.Services {
		(*serviceFields)(&m.Services[i]).fields(c)
	}
}

// serviceFields is a Service.
type serviceFields Service

func (m *serviceFields) fields(c *coder) {
	lifeFields(c, &m.Life)
	c.u16((*uint16)(&m.Port))
	c.reserved(2)
	c.i64((*int64)(&m.RoundTrip))
	c.text(&m.Name)
	c.text(&m.Node)
}

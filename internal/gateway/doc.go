// Package gateway connects applications that know nothing of the fabric: it carries their
// TCP and Unix connections over connections of a node. It is written on package fabric,
// as an application is, and runs in fabricd on the node of its process.
//
// [Gateways] are the gateways of a node: those of its configuration, and those that run as
// long as a command does. A gateway listens at one side and dials the other one for each
// connection that it takes (side.go), and copies between the two (carry.go).
package gateway

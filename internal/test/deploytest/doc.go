// Package deploytest holds the tests of what deploy/ and the Dockerfile promise:
// the images, the compose file with its applications, the compose lab of fabricd
// chaos, the systemd unit, the kernel's settings, and the pages about them, whose
// commands are executed.
//
// They need Docker with docker-compose or compose 2, and systemd-analyze, and
// fail without them. On a machine that has none, say so:
//
//	FABRICD_TEST_WITHOUT=docker,systemd go test ./internal/test/deploytest
//
// The images are built once, or are those of FABRICD_IMAGE and
// FABRICD_APPS_IMAGE. Containers, networks, volumes and images have a name of
// their own, fabricd-test-…, and TestMain checks that none of them is left.
//
// What Kubernetes and compose 2 think of the files is tested in deploy/check, a
// module of its own, so that their libraries cost fabricd's nothing.
package deploytest

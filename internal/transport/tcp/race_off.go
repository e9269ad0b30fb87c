//go:build !race || !linux

package tcp

func beforeWritev() {}

// Package zkbackend keeps the leases of package core in ZooKeeper.
package zkbackend

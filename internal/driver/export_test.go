package driver

// What tests of package driver_test look at.
var WindowFor = windowFor

const ConnCost = connCost

#pragma once
// SIGINT and SIGTERM for the commands that outlive them. Until a handler is installed they end the
// program.

namespace fathom {

// Counts every SIGINT and SIGTERM from now on instead of ending the program.
void CatchSignals();
int SignalCount();
// Sleeps until more than `seen` signals have come, or for `seconds`.
bool WaitForSignal(int seen, double seconds);

}  // namespace fathom

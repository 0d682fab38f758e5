#pragma once
// SIGINT and SIGTERM for the commands that outlive them. Until a handler is installed they end the
// program.

namespace fathom {

// Counts every SIGINT and SIGTERM from now on instead of ending the program.
void CatchSignals();
int SignalCount();
bool TerminationAsked();  // a SIGTERM was among them
// Sleeps until more than `seen` signals have come, or for `seconds`.
bool WaitForSignal(int seen, double seconds);
// Sleeps until `fd` can be read (true) or more than `seen` signals have come (false).
bool WaitForInput(int fd, int seen);

}  // namespace fathom
